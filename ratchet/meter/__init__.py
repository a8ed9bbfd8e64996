"""The progress meter (DeltaTTG, methods §3): what is still to be written until a task is done, asked before every action.

`labels` say what it learns from recorded episodes, `answer` how it answers, `score` asks all prefixes of episodes at once, `written` and
`head` are its two forms, `fit` trains them, `gate` says whether what came of it deserves trust, `guidance` lets it choose actions.
"""
