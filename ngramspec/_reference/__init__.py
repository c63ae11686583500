"""The plain-Python twin of each native structure: oracle and readable documentation."""
