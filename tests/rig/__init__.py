"""What tests of broken machines share: networks of their own, processes that start quickly, clients that keep
every answer, and judges that read nothing but files."""
