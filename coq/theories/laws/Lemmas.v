(** * From lemmas to laws

    A pattern that is called is replaced by what it means.  A way through a pattern takes one alternate
    wherever the pattern has several, and enters no call.  If in each way of each pattern that may be called
    the subject is what the pattern means, and in each way of the rule's own pattern it is what the
    replacement denotes, then the rule has its law: by induction over the derivation of a match, in which a
    recursive call is a part. *)

From Coq Require Import List Bool ZArith.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Templates.
From PyPM.laws Require Import Structures Expressions Certificates.

Section Ways.
Context {Δ : Domain}.

(** ** Ways through a pattern *)
Fixpoint ways (p : pattern) : list pattern :=
  let fix each (ps : list pattern) : list (list pattern) :=
    match ps with
    | [] => [[]]
    | p :: ps => flat_map (fun w => map (cons w) (each ps)) (ways p)
    end in
  match p with
  | PAlt p q => ways p ++ ways q
  | POp f ps => map (POp f) (each ps)
  | PFun F ps => map (PFun F) (each ps)
  | PEx x p => map (PEx x) (ways p)
  | PGuard p g => map (fun w => PGuard w g) (ways p)
  | PLet p x e => map (fun w => PLet w x e) (ways p)
  | PMatch p q x => flat_map (fun w => map (fun v => PMatch w v x) (ways q)) (ways p)
  | PVar _ | PMu _ _ _ _ _ _ | PCall _ _ => [p]
  end.
Fixpoint ways_of_all (ps : list pattern) : list (list pattern) :=
  match ps with [] => [[]] | p :: ps => flat_map (fun w => map (cons w) (ways_of_all ps)) (ways p) end.

(** The recursion contexts of all patterns that may be called from a pattern in the context [R] *)
Fixpoint contexts (R : recursion) (p : pattern) {struct p} : list recursion :=
  match p with
  | PVar _ | PCall _ _ => []
  | POp _ ps | PFun _ ps => flat_map (contexts R) ps
  | PAlt p q | PMatch p q _ => contexts R p ++ contexts R q
  | PEx _ p | PGuard p _ | PLet p _ _ => contexts R p
  | PMu xs ins outs small b _ => let R' := Def xs ins outs small b :: R in R' :: contexts R' b
  end.

Section Meant.
Context {T : Type} {Σ : Structure T}.

(** What is said of a pattern, by its context: of an environment of its parameters, and the subject *)
Variable meant : recursion -> env T -> T -> Prop.

(** A way matches if its calls are what they mean. *)
Inductive by_meaning : recursion -> pattern -> env T -> T -> Prop :=
| B_var R x θ t : θ x = Some (VTerm t) -> by_meaning R (PVar x) θ t
| B_op R f ps θ t ts : dest t = (f, ts) -> all_by_meaning R ps θ ts -> by_meaning R (POp f ps) θ t
| B_fun R F ps θ t f ts :
    dest t = (f, ts) -> θ F = Some (VOp f) -> all_by_meaning R ps θ ts -> by_meaning R (PFun F ps) θ t
| B_ex R x p θ t v : by_meaning R p (update θ x v) t -> by_meaning R (PEx x p) θ t
| B_guard R p g θ t : by_meaning R p θ t -> geval θ g = Some true -> by_meaning R (PGuard p g) θ t
| B_let R p x e θ t v :
    by_meaning R p θ t -> eval θ e = Some v -> θ x = Some v -> by_meaning R (PLet p x e) θ t
| B_match R p q x θ t u :
    by_meaning R p θ t -> θ x = Some (VTerm u) -> by_meaning R q θ u -> by_meaning R (PMatch p q x) θ t
| B_mu R xs ins outs small b ys θ t :
    meant (Def xs ins outs small b :: R) (callenv xs ys θ) t -> by_meaning R (PMu xs ins outs small b ys) θ t
| B_call R i d R' ys θ t :
    skipn i R = d :: R' -> meant (d :: R') (callenv (d_params d) ys θ) t -> by_meaning R (PCall i ys) θ t
with all_by_meaning : recursion -> list pattern -> env T -> list T -> Prop :=
| B_nil R θ : all_by_meaning R [] θ []
| B_cons R p ps θ t ts :
    by_meaning R p θ t -> all_by_meaning R ps θ ts -> all_by_meaning R (p :: ps) θ (t :: ts).

(** The lemma of a pattern that is called: in each of its ways the subject is what the pattern means. *)
Definition lemma (C : recursion) : Prop :=
  match C with
  | [] => True
  | d :: _ => forall w θ t, In w (ways (d_body d)) -> by_meaning C w θ t -> meant C θ t
  end.

Definition scoped (R : recursion) : Prop := forall i d R', skipn i R = d :: R' ->
  lemma (d :: R') /\ Forall lemma (contexts (d :: R') (d_body d)).

Lemma scoped_cons d R : scoped R -> lemma (d :: R) -> Forall lemma (contexts (d :: R) (d_body d)) ->
  scoped (d :: R).
Proof. intros S L F [| i] d' R' E; [injection E as <- <-; now split | exact (S i d' R' E)]. Qed.
Lemma skipn_twice {X} i : forall j (l : list X), skipn j (skipn i l) = skipn (i + j) l.
Proof. induction i as [| i IH]; intros j [| x l]; cbn; auto. apply skipn_nil. Qed.
Lemma scoped_skipn i R d R' : scoped R -> skipn i R = d :: R' -> scoped (d :: R').
Proof. intros S E j d' R'' E'. apply (S (i + j)). now rewrite <- skipn_twice, E. Qed.

Lemma ways_op f ps : ways (POp f ps) = map (POp f) (ways_of_all ps).
Proof. reflexivity. Qed.
Lemma ways_fun F ps : ways (PFun F ps) = map (PFun F) (ways_of_all ps).
Proof. reflexivity. Qed.

(** A match is a match in some way. *)
Lemma some_way :
  (forall R p θ t, R ⊢ p @ θ ≈ t -> scoped R -> Forall lemma (contexts R p) ->
     exists w, In w (ways p) /\ by_meaning R w θ t) /\
  (forall R ps θ ts, R ⊢ ps @ θ ≈* ts -> scoped R -> Forall lemma (flat_map (contexts R) ps) ->
     exists ws, In ws (ways_of_all ps) /\ all_by_meaning R ws θ ts).
Proof.
  apply (matches_mutind
    (fun R p θ t _ => scoped R -> Forall lemma (contexts R p) -> exists w, In w (ways p) /\ by_meaning R w θ t)
    (fun R ps θ ts _ => scoped R -> Forall lemma (flat_map (contexts R) ps) ->
      exists ws, In ws (ways_of_all ps) /\ all_by_meaning R ws θ ts)).
  - intros R x θ t E S F. exists (PVar x). split; [now left | now constructor].
  - intros R f ps θ t ts E _ IH S F. destruct (IH S F) as (ws & W & B). exists (POp f ws).
    rewrite ways_op. split; [now apply in_map | econstructor; eauto].
  - intros R F ps θ t f ts E E' _ IH S Fl. destruct (IH S Fl) as (ws & W & B). exists (PFun F ws).
    rewrite ways_fun. split; [now apply in_map | econstructor; eauto].
  - intros R p q θ t _ IH S F. apply Forall_app in F as [F _]. destruct (IH S F) as (w & W & B).
    exists w. split; [apply in_or_app; now left | exact B].
  - intros R p q θ t _ IH S F. apply Forall_app in F as [_ F]. destruct (IH S F) as (w & W & B).
    exists w. split; [apply in_or_app; now right | exact B].
  - intros R x p θ t v _ IH S F. destruct (IH S F) as (w & W & B). exists (PEx x w).
    split; [now apply in_map | now apply B_ex with v].
  - intros R p g θ t _ IH G S F. destruct (IH S F) as (w & W & B). exists (PGuard w g).
    split; [now apply (in_map (fun w => PGuard w g)) | now constructor].
  - intros R p x e θ t v _ IH E X S F. destruct (IH S F) as (w & W & B). exists (PLet w x e).
    split; [now apply (in_map (fun w => PLet w x e)) | now apply B_let with v].
  - intros R p q x θ t u _ IHp X _ IHq S F. apply Forall_app in F as [Fp Fq].
    destruct (IHp S Fp) as (w & W & B), (IHq S Fq) as (v & V & B'). exists (PMatch w v x).
    split; [| now apply B_match with u]. apply in_flat_map. exists w.
    split; [exact W | now apply (in_map (fun v => PMatch w v x))].
  - intros R xs ins outs small b ys θ t _ IH S F. cbn in F. inversion F as [| C Cs L Fb]; subst.
    destruct (IH (scoped_cons (Def xs ins outs small b) R S L Fb) Fb) as (w & W & B).
    exists (PMu xs ins outs small b ys). split; [now left |]. apply B_mu. exact (L w _ t W B).
  - intros R i d R' ys θ t E _ IH S F. destruct (S i d R' E) as [L Fb].
    destruct (IH (scoped_skipn i R d R' S E) Fb) as (w & W & B).
    exists (PCall i ys). split; [now left |]. apply (B_call R i d R'); [exact E |]. exact (L w _ t W B).
  - intros R θ _ _. exists []. split; [now left | constructor].
  - intros R p ps θ t ts _ IHp _ IHps S F. apply Forall_app in F as [Fp Fps].
    destruct (IHp S Fp) as (w & W & B), (IHps S Fps) as (ws & Ws & Bs). exists (w :: ws).
    split; [| now constructor]. apply in_flat_map. exists w. split; [exact W | now apply in_map].
Qed.

Theorem all_ways ps θ ts : Forall lemma (flat_map (contexts []) ps) -> [] ⊢ ps @ θ ≈* ts ->
  exists ws, In ws (ways_of_all ps) /\ all_by_meaning [] ws θ ts.
Proof. intros F M. apply some_way; auto. intros [|] d R' E; discriminate. Qed.
End Meant.
End Ways.

Section Laws.
Context {Δ : Domain} {T V : Type} {Σ : Structure T} (sem : op -> list V -> V) (den : T -> V).
Context {A : structure} {P : Type}.
Variable element : V -> P -> A.    (* of a tensor at a place *)
Variable certificates : list (expr * expr).

(** The elements of two tensors are read as pairs of expressions, each defined. *)
Definition read_equal (v w : V) : Prop := forall p, exists l r Inp I,
  In (l, r) certificates /\ def Inp I l /\ def Inp I r /\
  element v p = Expressions.den Inp I l /\ element w p = Expressions.den Inp I r.

(** What a pattern that is called means: one thing if it says so; else that of one of its spellings.  Each is
    a relation of environments of its parameters and values. *)
Variable meaning : recursion -> list (env T -> V -> Prop).
Definition meant (C : recursion) (θ : env T) (t : T) : Prop :=
  exists m, In m (meaning C) /\ forall v, m θ v -> v = den t.

(** Each way of a pattern that is called is read as an equation with something that it means. *)
Definition read_lemma (C : recursion) : Prop :=
  match C with
  | [] => True
  | d :: _ => forall w θ t, In w (ways (d_body d)) -> by_meaning meant C w θ t ->
      exists m, In m (meaning C) /\ forall v, m θ v -> read_equal (den t) v
  end.
(** Each way of the rule's patterns is read as an equation with the replacement. *)
Definition read_rule (ps : list pattern) (rs : list template) : Prop :=
  forall ws θ ts vs, In ws (ways_of_all ps) -> all_by_meaning meant [] ws θ ts ->
    sequence (map (template_den sem den θ) rs) = Some vs -> Forall2 read_equal (map den ts) vs.

Theorem lemmas_laws ps rs :
  (forall v w, (forall p, element v p = element w p) -> v = w) ->
  Forall read_lemma (flat_map (contexts []) ps) -> read_rule ps rs ->
  forallb (fun c => accepted (fst c) (snd c)) certificates = true ->
  laws sem den ps rs.
Proof.
  intros Ext L R C. rewrite forallb_forall in C.
  assert (Equal : forall v w, read_equal v w -> v = w).
  { intros v w H. apply Ext. intros p. destruct (H p) as (l & r & Inp & I & Hc & Dl & Dr & -> & ->).
    specialize (C _ Hc). now apply accepted_equal. }
  assert (F : Forall (lemma meant) (flat_map (contexts []) ps)).
  { eapply Forall_impl; [| exact L]. intros [| d Cs] H; [exact Logic.I |]. intros w θ t W B.
    destruct (H w θ t W B) as (m & M & E). exists m. split; [exact M |]. intros v Hv. symmetry. auto. }
  intros θ ts vs M S. destruct (all_ways meant ps θ ts F M) as (ws & W & B).
  pose proof (R ws θ ts vs W B S) as H. clear - H Equal. symmetry.
  induction H as [| v w l k E _ IH]; auto. f_equal; auto.
Qed.
End Laws.
