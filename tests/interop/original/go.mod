module headrace.test/original

go 1.24

require (
	github.com/ValerySidorin/fujin v0.0.0-20250518105530-077855fac4e7
	github.com/quic-go/quic-go v0.51.0
)
