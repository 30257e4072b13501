"""What several kinds of tests need: a broker process to break and a client with no manners."""
