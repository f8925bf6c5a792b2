"""``topas-score``: the paper's score, searched to (nearly) its optimum in compiled code."""
