"""The store of whole episodes on the device, and which of their steps an update looks at."""
