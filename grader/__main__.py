"""`python -m grader`: see commands.py. Judging processes load this file too, so it imports nothing at the top."""

if __name__ == "__main__":
    from grader.commands import main

    main()
