"""Why a rule does not match at a node."""
