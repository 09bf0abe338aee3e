"""One report about several files made from one checkpoint: what each costs, against a reference.

facts    what a file is and how it was made, from its header, its receipt and its bytes
measure  facts, weights and predictions of all files: the report as plain data
markup   HTML with everything escaped      numbers  numbers for people      colours  of types and errors
charts   drawings as SVG                   maps     tensors by layers, as tables
page     the report as one HTML file       card     and as a Markdown model card
"""
