"""What braidstream costs, as ratios to the bare engine and bare redis-py. Run: python -m bench [--quick]"""
