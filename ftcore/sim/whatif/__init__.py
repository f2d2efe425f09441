"""What-if: decides the incidents of a recorded log again with another chain, and compares the costs."""
