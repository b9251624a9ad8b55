"""Pieces of training as workloads: one transformer, built in torch, that all of them train or take apart."""
