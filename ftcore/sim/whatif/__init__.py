"""What-if: the incidents of a recorded log, decided again under another chain, and the price of each path."""
