"""Types by evidence: what each tensor loses in each type is measured, and bytes are spent where they save most.

budget      what is asked for, ``auto-bpw=4.5`` or ``auto-size=12GiB``
candidates  the types that are tried
measure     the error of one tensor in one type, on a sample of its rows
weigh       how much a loss counts in one tensor, and how much in another
sensitivity the same, measured with a text;  fit  from divergences of groups to single tensors
mixes       the fixed mixes that a choice has to beat
solve       the best choice within a budget, from sizes and errors alone
choose      the same from options of tensors, and a contest of several choices by their predictions
search      all of it for one source;  found  what it comes to, and the choice as patterns for ``--tensor-type``
types_file  the choice as a file that makes the same output again
"""
