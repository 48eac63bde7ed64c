"""Packages that a module needs and the libattn package does not."""
import contextlib


@contextlib.contextmanager
def extra(name, module):
    """Where an import in it fails, the error also says which extra of the package brings what `module` imports."""
    try:
        yield
    except ImportError as why:
        text = f"{module} needs packages that are not installed here, or too old ({why}); libattn[{name}] brings them"
        raise type(why)(text, name=why.name, path=why.path) from why
