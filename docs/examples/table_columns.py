"""What does a column mean? Names, types and meanings of a table's columns, as docs/tables.md has them."""

from reliable_channel.lake.tables import BY_NAME

for column in BY_NAME["delivery_status"].columns:
    print(f"{column.name:24} {column.type:12} {column.comment}")
