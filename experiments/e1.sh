export PYTHONPATH=src; timeout 60 python3 .gpu/small3.py
