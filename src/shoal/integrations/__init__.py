"""Other libraries' ways of saying what is to be run, each public as `shoal.NAME`."""
