"""At most M measurements a request, in order (`packing.md`)."""
