"""How the shipped calibrations are made of published tables: see README.md here. No part of the package."""
