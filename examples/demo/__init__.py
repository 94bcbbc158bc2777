"""The main job on real models: what PyPM finds, what it makes of it, and what that gains."""
