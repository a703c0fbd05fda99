"""Learning methods. Each module holds a method, its settings and its arms."""
