"""A web console for people on call and developers: `braid console`.

    browser --HTTP--> visitors.py (who may look) --> pages --> access.py (bounded reads) --> engines
                                                       ^
                                          samples.py: all regions, every two seconds, for all viewers

Pages are drawn on the server. The browser needs no build step and no other site: one style sheet, one script.
"""
