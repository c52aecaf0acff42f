"""The rules that hold at every door: what a namespace demands, who may do what, what the life of a name looks like."""
