{{/*
Probes. Kubernetes asks a worker over gRPC (grpc.health.v1) and the gateway over HTTP. In mode tls a worker shows a
certificate, which the kubelet cannot check: `baton health` asks in the container. In mode sidecar services listen on
loopback: their Envoy answers on a port that has health and metrics and nothing else. The start probe covers the loading
of the model; until it has passed, the other two do not run.
*/}}

{{/* baton.ownPort (list $ "prefill"): the port on which a service itself takes gRPC calls */}}
{{- define "baton.ownPort" -}}
{{- $ := index . 0 -}}
{{- if eq $.Values.security.mode "sidecar" -}}
{{- $.Values.ports.behindSidecar -}}
{{- else -}}
{{- ternary $.Values.ports.grpc $.Values.ports.worker (eq (index . 1) "gateway") -}}
{{- end -}}
{{- end -}}

{{/* baton.probe (list $ "prefill"): how a worker is asked */}}
{{- define "baton.probe" -}}
{{- $ := index . 0 -}}
{{- if eq $.Values.security.mode "tls" -}}
exec: {command: [baton, health, {{ include "baton.tier" (index . 1) }}, --config, /etc/baton/baton.toml]}
timeoutSeconds: 10
{{- else -}}
grpc: {port: {{ ternary $.Values.ports.sidecarProbe $.Values.ports.worker (eq $.Values.security.mode "sidecar") }}}
timeoutSeconds: 3
{{- end -}}
{{- end -}}

{{- define "baton.workerProbes" -}}
{{- $ := index . 0 -}}{{- $values := include "baton.values" . | fromYaml -}}
{{- $period := ternary 30 10 (eq $.Values.security.mode "tls") -}}
startupProbe:
  {{- include "baton.probe" . | nindent 2 }}
  periodSeconds: 5
  failureThreshold: {{ ceil (divf $values.startSeconds 5) }}
readinessProbe:
  {{- include "baton.probe" . | nindent 2 }}
  periodSeconds: {{ $period }}
livenessProbe:
  {{- include "baton.probe" . | nindent 2 }}
  periodSeconds: {{ $period }}
  failureThreshold: 6
{{- end -}}

{{/* /health answers 200 when a request can be served, /version whenever the process lives, workers or not. Both are open
to callers without a key. */}}
{{- define "baton.gatewayProbes" -}}
{{- $port := ternary .Values.ports.sidecarProbe .Values.ports.http (eq .Values.security.mode "sidecar") -}}
startupProbe:
  httpGet: {path: /version, port: {{ $port }}}
  periodSeconds: 2
  failureThreshold: {{ ceil (divf .Values.gateway.startSeconds 2) }}
readinessProbe:
  httpGet: {path: /health, port: {{ $port }}}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /version, port: {{ $port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}
