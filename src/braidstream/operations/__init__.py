"""What operators do and see: behind the command line, the console and the daemons."""
