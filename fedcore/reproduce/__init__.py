"""The paper's experiments, run again: its figures as data, ours beside them, and a verdict on each by one rule.

Nothing here is tuned until a figure matches. Limits stand beside the methods, so that a figure which no method could have
reached, or which a constant beats, is seen as what it is.

Source: Yue, Al Kontar and Estrada Gomez, "Federated Data Analytics: A Study on Linear Models", sections 5.1 and 6.2.
"""
