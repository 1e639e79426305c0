"""python -m mlxtrain"""

from mlxtrain.cli import main

if __name__ == "__main__":
    main()
