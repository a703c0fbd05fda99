"""`reflectrl certify`: a verdict on an environment, with the faults named. One file per question."""
