"""What an operator is: its types, its signature, the rules for its reference; nothing of the dispatcher."""
