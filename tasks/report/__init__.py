"""Reports for a person: tables as text and data, and figures. The only room that knows matplotlib."""
