"""What `fedlin doctor` looks at: each check is a function that says what it has found, and what to do about it."""
