"""How to cut a training over a cluster: every layout that divides, priced, with the recipe's rules beside."""
