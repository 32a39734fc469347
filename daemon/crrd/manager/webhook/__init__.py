"""The admission webhook: answers the API server's AdmissionReviews over HTTPS."""
