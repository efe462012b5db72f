"""What several families can do beside their model: labels, fine-tuning, encoders, sparse codes."""
