"""A GPT-2 trained in stages, on several processes of one machine."""
