"""Images: restoration patch by patch, grey and colour, rate–distortion curves."""
