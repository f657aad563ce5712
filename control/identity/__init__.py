"""Answers to what authenticators ask (``proxy.auth.questions``): here passwords are hashed, files are read and signatures are checked.

passwords       what is stored of a password, and whether one is it
users_file      the file of users: read, written, changed
users           who is in it, and what those are told who are not
jwks            a file of public keys
tokens          whether a signed token is good
secrets         passwords and tokens of our own, for upstreams
answers         all of them together
"""
