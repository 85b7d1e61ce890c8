"""`python -m grader`: see commands.py. Processes that judge load this file too, so it imports nothing for them."""

if __name__ == "__main__":
    from grader.commands import main

    main()
