"""The evidence of an incident. `collect` takes it on a node, `stacks` reads it, `git` says which code ran."""
