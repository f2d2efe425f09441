"""The keeper of a node: owns the staging memory, writes shards to storage, outlives workers and agent."""
