"""`python -m espalier_operator`: the operator on Kubernetes."""

from espalier_operator.kube.main import main

if __name__ == "__main__":
    main(prog_name="espalier-operator")
