"""Kernels of the ops that are no products with weights.

They have a folder of their own because compiled code is kept by the sources of its folder: whoever changes one of
these does not compile the products anew.
"""
