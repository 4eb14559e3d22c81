"""A folder for each draft: its keys (`config`, without torch), draft, network, training, published layout."""
