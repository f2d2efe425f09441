"""The state of a training process: collected, staged, restored. Only ``slices`` may be imported without torch."""
