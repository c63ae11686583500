"""What depends on the installed transformers: private names, undocumented fields, versions."""
