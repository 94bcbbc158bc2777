"""The language: decorated Python functions, read from source, elaborated into the calculus."""
