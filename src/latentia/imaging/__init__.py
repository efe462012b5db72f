"""Work on images: patch by patch, grey and colour, rate against distortion."""
