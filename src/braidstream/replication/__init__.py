"""Links between regions: what a region wrote flows to every peer, and all regions converge."""
