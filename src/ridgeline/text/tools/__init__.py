"""What an assistant's text is made of: answer, reasoning, calls of tools. `families` has a row for each form that models write."""
