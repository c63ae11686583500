"""Where ngramspec meets other programs: model folders that speculate by themselves."""
