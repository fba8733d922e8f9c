package envoy

import (
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	credentialScheme = "kubernetes://" //nolint:gosec // G101: no credential
	rootsSuffix      = "-cacert"
)

// CredentialSecret is the name of the secret with the certificate and key of a credentialName, as in
// Istio (ToResourceName, pilot/pkg/model/credentials). The agent serves it on the socket that has the
// workload's own secrets.
func CredentialSecret(name string) string {
	switch {
	case strings.HasPrefix(name, "builtin://") && strings.HasSuffix(name, rootsSuffix):
		return rootSecret
	case strings.HasPrefix(name, "builtin://"): // the workload's own certificate
		return ownSecret
	case strings.HasPrefix(name, "invalid://"):
		return "invalid://"
	case strings.HasPrefix(name, credentialScheme), strings.HasPrefix(name, "kubernetes-gateway://"), strings.HasPrefix(name, "configmap://"):
		return name
	default:
		return credentialScheme + name
	}
}

// CredentialRoots is the name of the secret with the authorities, and the list of revoked
// certificates, by which peers of a credentialName are verified.
func CredentialRoots(name string) string { return CredentialSecret(name + rootsSuffix) }

// credentialWait is how long a listener or cluster waits for a secret. Without a limit one that
// is missing would keep a new listener closed, with all servers of its port.
const credentialWait = time.Second

// credentialSecret requests a secret of that name from the agent. In the incremental variant an agent
// can say that there is no such secret, and Envoy does not wait at all.
func credentialSecret(name string) *tlsv3.SdsSecretConfig {
	out := secret(name)
	out.GetSdsConfig().GetApiConfigSource().ApiType = corev3.ApiConfigSource_DELTA_GRPC
	out.SdsConfig.InitialFetchTimeout = durationpb.New(credentialWait)
	return out
}
