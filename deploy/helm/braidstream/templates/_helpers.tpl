{{/* Every template below takes a dict: root (.), component, and what it says. */}}

{{- define "braidstream.name" -}}
{{ printf "%s-%s" (.root.Release.Name | trunc 40 | trimSuffix "-") .component }}
{{- end }}

{{- define "braidstream.selector" -}}
app.kubernetes.io/name: braidstream
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "braidstream.labels" -}}
{{ include "braidstream.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "braidstream.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{/*
The pod of a component. args, ports (name: number), values (resources, extraArgs), and what may be left out:
image, tlsSecret (mounted at /etc/braid-own-tls), env (more variables), probe (the name of a port: only whether
it is open), preStop (seconds), restart, bare (without file and passwords), reloads (it reads a changed file by itself).
*/}}
{{- define "braidstream.pod" -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- include "braidstream.labels" . | nindent 4 }}
  annotations:
    {{- if not .reloads }}
    checksum/config: {{ $values.config | sha256sum }}
    {{- end }}
    {{- with .ports.metrics }}
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ . | quote }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: 30
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "braidstream.selector" . | nindent 10 }}
  containers:
    - name: {{ .component }}
      image: {{ .image | default (include "braidstream.image" .root) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        {{- range concat .args (.values.extraArgs | default list) }}
        - {{ . | quote }}
        {{- end }}
      {{- if not .bare }}
      envFrom:
        - secretRef: {name: {{ $values.secret }}}
      {{- end }}
      {{- with .env }}
      env: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .ports }}
      ports:
        {{- range $name, $port := . }}
        - {name: {{ $name }}, containerPort: {{ $port }}}
        {{- end }}
      {{- end }}
      {{- with .preStop }}
      # Until the Service sends it no new clients.
      lifecycle: {preStop: {exec: {command: [sleep, {{ . | quote }}]}}}
      {{- end }}
      {{- if .ports.metrics }}
      livenessProbe: {httpGet: {path: /healthz, port: metrics}, periodSeconds: 10, timeoutSeconds: 3}
      readinessProbe: {httpGet: {path: /readyz, port: metrics}, periodSeconds: 5, timeoutSeconds: 3}
      {{- else if .probe }}
      livenessProbe: {tcpSocket: {port: {{ .probe }}}, periodSeconds: 10, timeoutSeconds: 3}
      readinessProbe: {tcpSocket: {port: {{ .probe }}}, periodSeconds: 5, timeoutSeconds: 3}
      {{- end }}
      resources: {{- toYaml .values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        {{- if not .bare }}
        - {name: config, mountPath: /etc/braid, readOnly: true}
        {{- end }}
        {{- if $values.tlsSecret }}
        - {name: tls, mountPath: /etc/braid-tls, readOnly: true}
        {{- end }}
        {{- if .tlsSecret }}
        - {name: own-tls, mountPath: /etc/braid-own-tls, readOnly: true}
        {{- end }}
        - {name: scratch, mountPath: /tmp}
  volumes:
    {{- if not .bare }}
    - name: config
      configMap: {name: {{ include "braidstream.name" (dict "root" .root "component" "config") }}}
    {{- end }}
    {{- with $values.tlsSecret }}
    - name: tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- with .tlsSecret }}
    - name: own-tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    - name: scratch
      emptyDir: {}
{{- end }}

{{- define "braidstream.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "braidstream.name" . }}
  labels:
    {{- include "braidstream.labels" . | nindent 4 }}
spec:
  replicas: {{ .values.replicas | default 1 }}
  {{- with .strategy }}
  strategy: {type: {{ . }}}
  {{- end }}
  selector:
    matchLabels:
      {{- include "braidstream.selector" . | nindent 6 }}
  template:
    {{- include "braidstream.pod" . | nindent 4 }}
{{- end }}

{{/* service (type, port, annotations), target (a port of the pod). */}}
{{- define "braidstream.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "braidstream.name" . }}
  labels:
    {{- include "braidstream.labels" . | nindent 4 }}
  {{- with .service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  {{- if eq .service.type "LoadBalancer" }}
  externalTrafficPolicy: Local # keeps the addresses of clients
  {{- end }}
  selector:
    {{- include "braidstream.selector" . | nindent 4 }}
  ports:
    - {name: {{ .target }}, port: {{ .service.port }}, targetPort: {{ .target }}}
{{- end }}

{{/* from (a list of peers) may use the port `target`; namespaces of monitoring the metrics. */}}
{{- define "braidstream.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "braidstream.name" . }}
  labels:
    {{- include "braidstream.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "braidstream.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    {{- if .target }}
    - from: {{- toYaml .from | nindent 8 }}
      ports: [{port: {{ .target }}}]
    {{- end }}
    {{- if .metrics }}
    - from:
        - namespaceSelector: {{- toYaml .root.Values.networkPolicy.monitoring | nindent 12 }}
      ports: [{port: metrics}]
    {{- end }}
{{- end }}

{{- define "braidstream.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "braidstream.name" . }}
  labels:
    {{- include "braidstream.labels" . | nindent 4 }}
spec:
  minAvailable: {{ .root.Values.podDisruptionBudget.minAvailable }}
  selector:
    matchLabels:
      {{- include "braidstream.selector" . | nindent 6 }}
{{- end }}
